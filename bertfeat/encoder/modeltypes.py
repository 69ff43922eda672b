"""Model types of transformers that are not run: refused with a reason, or not models of text.

Together with `bertfeat.encoder.families` this accounts for every type of the pinned transformers. A test fails when
transformers adds one: it gets a row in a table of families, or its name goes into one of the lists here.
"""

from __future__ import annotations

from bertfeat.encoder.families import family_of
from bertfeat.encoder.refusals import WIDTHS

_WRAPPED = "it reads images, sound or other data besides text; save its text model alone"
_REFUSED: tuple[tuple[str, str], ...] = (
    (
        _WRAPPED,
        """
        aimv2 align altclip aria audioflamingo3 aya_vision blip blip-2 bridgetower chameleon chinese_clip clap clip
        clipseg cohere2_vision cohere_compass colmodernvbert colpali colqwen2 cosmos3_edge cosmos3_omni deepseek_ocr2
        deepseek_vl deepseek_vl_hybrid dots3_note emu3 ernie4_5_vl_moe evolla EvollaModel exaone4_5 fast_vlm flava
        florence2 fun_asr_nano fuyu gemma3 gemma3n gemma4 gemma4_unified git glm46v glm4v glm4v_moe glm5_next glm_image
        glm_ocr glmasr glmga got_ocr2 granite4_vision granite_docling granite_speech granite_speech_plus grounding-dino
        groupvit hunyuan_vl hyperclovax_vision_v2 idefics idefics2 idefics3 inkling2 inkling_mm_model instructblip
        instructblipvideo internvl janus jev kimi_k25 kosmos-2 kosmos-2.5 lfm2_vl lfm3_vl lighton_ocr llama4 llava
        llava_next llava_next_video llava_onevision lxmert metaclip_2 minicpm_ocr minicpmv4_6 minicpmv4_7 minimax_m3_vl
        mistral3 mistral_large4 mllama mm-grounding-dino modernvbert molmo2 moss_transcribe_diarize muse_glimmer
        muse_spark musicflamingo nemo_speechlm nemotron_h_omni neomme omdet-turbo oneformer ovis2 owlv2 owlvit
        paddleocr_vl paligemma pe_audio pe_audio_video pe_video perception_lm phi4_multimodal pi0 qianfan_ocr
        qwen2_5_omni qwen2_5_omni_thinker qwen2_5_vl qwen2_audio qwen2_vl qwen3_5 qwen3_5_moe qwen3_asr qwen3_omni_moe
        qwen3_omni_moe_thinker qwen3_vl qwen3_vl_moe qwen4_exp sam3 sam3_lite_text sam3_video shieldgemma2 siglip
        siglip2 smolvlm step3p7 t5gemma2 tipsv2 tvp ultravbert unlimited_ocr vibevoice_asr video_llama_3 video_llava
        videoprism vilt vipllava vision-text-dual-encoder voxtral voxtral_realtime xclip
        """,
    ),
    (
        "it is a part of a larger model, which no test here has run alone",
        """
        aria_text blt_global_transformer blt_local_decoder blt_local_encoder blt_patcher bridgetower_text_model
        cohere_compass_text cosmos3_edge_text deepseek_ocr2_text diffusion_gemma_text dots3_note_text emu3_text_model
        ernie4_5_vl_moe_text gemma3n_text gemma4_assistant gemma4_text gemma4_unified_assistant gemma4_unified_text
        glm4v_moe_text glm4v_text glm_image_text glm_ocr_text granite4_vision_text granite_docling_text hunyuan_vl_text
        kosmos_2_5_text_model kosmos_2_text_model llama4_text mistral_large4_text mllama_text_model molmo2_text
        muse_glimmer_assistant muse_glimmer_text muse_spark_text paddleocr_vl_text pix2struct_text_model
        qwen2_5_omni_talker qwen2_5_omni_text qwen3_omni_moe_talker_text qwen3_omni_moe_text qwen3_vl_moe_text
        sam3_lite_text_text_model step3p5 t5_gemma_module t5gemma2_decoder t5gemma2_encoder t5gemma2_text
        unlimited_ocr_text videoprism_text_model voxtral_realtime_text
        """,
    ),
    (
        "it has recurrent, state-space, convolution or linear-attention layers in place of attention",
        """
        bailing_hybrid bamba falcon_h1 falcon_mamba glm5_next_text granitemoehybrid hrm_text inkling2_text jamba
        kimi_linear lfm2 lfm2_moe lfm3 mamba mamba2 minimax nemotron_h olmo_hybrid qwen3_5_moe_text qwen3_5_text
        qwen3_next qwen4_exp_text recurrent_gemma rwkv xlstm zamba zamba2 zaya
        """,
    ),
    (
        "it is a decoder that no test here has compared with transformers; docs/extending.md says how to add one",
        """
        afmoe axk1 axk2 beam bitnet cohere2_moe dbrx deepseek_v32 deepseek_v4 diffllama diffusion_gemma doge dots1
        exaone_moe flint glm4_moe_lite glm_moe_dsa granite_swa granitemoe_swa hunyuan_v1_moe hy_v3 hy_v4 inkling_text
        iquestcoder jetmoe kolibri1 laguna longcat_flash mellum mimo_v2_flash minimax_m2 minimax_m3_vl_text mistral4
        nanochat solar_open youtu
        """,
    ),
    (
        "it is made for speech or music, and has no text model that is used alone",
        """
        bark clvp clvp_decoder clvp_encoder csm dia dia_encoder fastspeech2_conformer fastspeech2_conformer_with_hifigan
        gradium_phonon_tts higgs_audio_v2 moshi musicgen musicgen_melody pocket_tts seamless_m4t seamless_m4t_v2
        speecht5 vibevoice vits
        """,
    ),
    (
        "its layers have different lengths, so that a token has no vector in most of them",
        """
        blt canine funnel perceiver
        """,
    ),
    (
        "its layers are padded to whole blocks of tokens",
        "pegasus_x",
    ),
    (
        WIDTHS,
        "embedding_gemma2 embedding_gemma2_text",
    ),
    (
        "its tokenizer has no fast version, and so no character offsets",
        """
        cpmant fsmt gpt-sw3 gpt_neox_japanese prophetnet tapas
        """,
    ),
    (
        "it reads the shapes and sounds of characters from a tokenizer that gives no character offsets",
        "roc_bert",
    ),
    (
        "it cannot run without the places of the words on a page",
        """
        bros layoutlmv2 layoutxlm udop
        """,
    ),
    (
        "it is made of two models; save the encoder alone, and name its folder",
        "encoder-decoder rag",
    ),
    (
        "it names the weights of the BERT inside in its own way; save that part alone, base_model.bert_model",
        "dpr",
    ),
    (
        "it predicts the structure of proteins; name the folder of an ESM C model instead",
        "esmfold2",
    ),
    (
        "its attention runs only in CUDA kernels that transformers downloads; elsewhere it gives zeros",
        "mra",
    ),
    (
        "its attention is causal, and transformers computes it as full attention",
        "aimv2_text_model",
    ),
    (
        "its attention hashes tokens at random, so that two runs differ",
        "reformer",
    ),
    (
        "its config.json holds the sizes of the encoder in a part of its own, which is not read",
        "t5gemma",
    ),
)

# They take images, sound, video, series of numbers or the states of another model.
_NOT_TEXT = """
    aimv2_vision_model align_vision_model altclip_vision_model audio-spectrogram-transformer audioflamingo3_encoder
    autoformer beit bit blip_2_qformer blip_2_vision_model blip_vision_model bridgetower_vision_model canary
    canary_decoder chameleon_vqgan chinese_clip_vision_model chmv2 clap_audio_model clip_vision_model
    clipseg_vision_model cohere_asr cohere_compass_vision conditional_detr convnext convnextv2 cosmos3_edge_vision
    csm_depth_decoder_model cvt d_fine dab-detr dac data2vec-audio data2vec-vision decision_transformer
    deepseek_ocr2_encoder deepseek_ocr2_sam_vision_model deepseek_ocr2_vision deformable_detr deimv2 deit depth_anything
    depth_pro detr dia_decoder dinat dinov2 dinov2_with_registers dinov3_convnext dinov3_vit donut-swin
    dots3_note_audio_encoder dots3_note_vision_encoder dpt edgetam edgetam_mask_decoder edgetam_prompt_encoder
    edgetam_video edgetam_video_mask_decoder edgetam_video_prompt_encoder edgetam_vision_model efficientloftr
    efficientnet emu3_vqgan encodec eomt eomt_dinov3 ernie4_5_vl_moe_vision exaone4_5_vision
    fastspeech2_conformer_hifigan flava_image_codebook flava_image_model flava_multimodal_model florence_vision focalnet
    fun_asr_nano_encoder gemma3n_audio gemma3n_vision gemma4_audio gemma4_unified_audio gemma4_unified_vision
    gemma4_vision git_vision_model glm4v_moe_vision glm4v_vision glm5_next_vision glm_image_vision glm_image_vqmodel
    glm_ocr_vision glmasr_encoder glpn got_ocr2_vision granite_docling_vision granite_speech5_ctc
    granite_speech5_encoder granite_speech_encoder granite_speech_plus_encoder groupvit_vision_model hgnet_v2 hiera
    higgs_audio_v2_tokenizer hubert hunyuan_vl_vision idefics2_perceiver idefics2_vision idefics3_vision
    idefics_perciever idefics_vision ijepa imagegpt informer inkling2_vision inkling_audio inkling_vision
    instructblip_qformer instructblip_vision_model instructblipvideo_qformer instructblipvideo_vision_model
    internvl_vision janus_vision_model janus_vqgan kimi_k25_vision kosmos_2_5_vision_model kosmos_2_vision_model
    kyutai_speech_to_text lasr_ctc lasr_encoder levit lfm3_vl_vision lightglue llama4_vision_model lw_detr lw_detr_vit
    mask2former maskformer maskformer-swin metaclip_2_vision_model mgp-str mimi mimi_decoder mimi_encoder
    minicpm_ocr_vision minicpmv4_6_vision minicpmv4_7_vision minimax_m3_vl_vision mlcd mlcd_vision_model
    mllama_vision_model mobilenet_v1 mobilenet_v2 mobilevit mobilevitv2 molmo2_adapter molmo2_vision moonshine
    moonshine_streaming moonshine_streaming_encoder moshi_depth moss_transcribe_diarize_audio muse_glimmer_vision
    muse_spark_audio muse_spark_vision musicgen_decoder musicgen_melody_decoder nemotron3_5_asr
    nemotron3_5_transcribe_asr_audio nemotron3_5_transcribe_audio nemotron3_5_transcribe_word_timestamp
    nemotron3_diarization nemotron3_diarization_audio nemotron_asr_streaming nemotron_asr_streaming_encoder neucodec
    nougat ovis2_vision owlv2_vision_model owlvit_vision_model paddleocr_vl_vision parakeet_ctc parakeet_encoder
    parakeet_rnnt parakeet_tdt patchtsmixer patchtst pe_audio_encoder pe_audio_video_encoder pe_video_encoder
    phi4_multimodal_audio phi4_multimodal_vision pix2struct pix2struct_vision_model pixio pixtral
    pocket_tts_audio_tokenizer pocket_tts_audio_tokenizer_decoder pocket_tts_audio_tokenizer_encoder poolformer
    pop2piano pp_chart2table pp_chart2table_vision pp_doclayout_v2 pp_doclayout_v3 pp_doclayout_v4 pp_formulanet
    pp_formulanet_text pp_formulanet_vision pp_lcnet pp_lcnet_v3 pp_lcnet_v4 pp_ocrv5_mobile_det pp_ocrv5_mobile_rec
    pp_ocrv5_server_det pp_ocrv5_server_rec pp_ocrv6_medium_det pp_ocrv6_small_det pp_ocrv6_small_rec pp_ocrv6_tiny_rec
    prompt_depth_anything pvt pvt_v2 qianfan_ocr_vision qwen2_5_omni_audio_encoder qwen2_5_omni_bigvgan qwen2_5_omni_dit
    qwen2_5_omni_token2wav qwen2_5_omni_vision_encoder qwen2_5_vl_vision qwen2_audio_encoder qwen2_vl_vision
    qwen3_5_moe_vision qwen3_5_vision qwen3_asr_encoder qwen3_omni_moe_audio_encoder
    qwen3_omni_moe_talker_code_predictor qwen3_omni_moe_vision_encoder qwen3_vl_moe_vision qwen3_vl_vision
    qwen4_exp_vision radio regnet resnet rf_detr rf_detr_dinov2 rt_detr rt_detr_resnet rt_detr_v2 sam sam2
    sam2_hiera_det_model sam2_mask_decoder sam2_prompt_encoder sam2_video sam2_video_mask_decoder
    sam2_video_prompt_encoder sam2_vision_model sam3_detr_decoder sam3_detr_encoder sam3_geometry_encoder
    sam3_lite_text_detr_decoder sam3_lite_text_detr_encoder sam3_lite_text_geometry_encoder sam3_lite_text_mask_decoder
    sam3_mask_decoder sam3_tracker sam3_tracker_mask_decoder sam3_tracker_prompt_encoder sam3_tracker_video
    sam3_tracker_video_mask_decoder sam3_tracker_video_prompt_encoder sam3_vision_model sam3_vit_model sam_hq
    sam_hq_mask_decoder sam_hq_prompt_encoder sam_hq_vision_model sam_mask_decoder sam_prompt_encoder sam_vision_model
    sapiens2 sapiens2_head segformer seggpt sew sew-d siglip2_vision_model siglip_vision_model slanet slanext
    slanext_vision smolvlm_vision speech-encoder-decoder speech_to_text speecht5_hifigan step3p5_vision superglue
    superpoint swiftformer swin swin2sr swinv2 table-transformer textnet time_series_transformer timesfm timesfm2_5
    timesformer timm_backbone timm_wrapper tipsv2_dpt tipsv2_vision_model trocr unispeech unispeech-sat univnet
    unlimited_ocr_sam_vision_model unlimited_ocr_vision unlimited_ocr_vision_encoder upernet uvdoc uvdoc_backbone
    vibevoice_acoustic_tokenizer vibevoice_acoustic_tokenizer_decoder vibevoice_acoustic_tokenizer_encoder
    vibevoice_diffusion video_llama_3_vision videomae videomt videoprism_vision_model vision-encoder-decoder vit vit_mae
    vit_msn vitdet vitmatte vitpose vitpose_backbone vivit vjepa2 voxtral_encoder voxtral_realtime_encoder wav2vec2
    wav2vec2-bert wav2vec2-conformer wavlm whisper xclip_vision_model xcodec xcodec2 yolos zoedepth
"""

_REASONS = {model_type: reason for reason, types in _REFUSED for model_type in types.split()}
_WITHOUT_TEXT = tuple(_NOT_TEXT.split())
# Types of models whose code lies in their folder.
_ELSEWHERE = {"new": "its code is not part of transformers; take a copy of the model with the model type 'gte'"}


def refused_types() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return each reason for a refusal with the model types that it holds for."""
    return tuple((reason, tuple(types.split())) for reason, types in _REFUSED)


def types_without_text() -> tuple[str, ...]:
    """Return the model types of transformers that are not models of text."""
    return _WITHOUT_TEXT


def refusal_of(model_type: str, text_type: object = None) -> str | None:
    """Return why a model type is not run; None where it is supported, or in no list.

    Args:
        model_type: The value in config.json.
        text_type: That of the model's `text_config`, where it has one.

    Examples:
        >>> refusal_of("clip")
        "it reads images, sound or other data besides text; save its text model alone, of the type 'clip_text_model'"
        >>> refusal_of("vit"), refusal_of("bert")
        ('it is not a model of text', None)
    """
    if model_type in _WITHOUT_TEXT:
        return "it is not a model of text"
    reason = _REASONS.get(model_type, _ELSEWHERE.get(model_type))
    if reason is not _WRAPPED:
        return reason
    for inner in (text_type, f"{model_type}_text_model", f"{model_type}_text"):
        if isinstance(inner, str) and family_of(inner) is not None:
            return f"{reason}, of the type {inner!r}"
    return f"{reason}, where its type is supported"
